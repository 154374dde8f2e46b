import sys

sys.path.insert(0, "/work/main/src")
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import warnings

warnings.filterwarnings("ignore")
import json, time, traceback, torch, inspect, gc

torch.set_num_threads(1)
from ebbtide.workloads.torchvision_mend import mend_torchvision

mend_torchvision()
import transformers

transformers.logging.set_verbosity_error()
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from ebbtide.workloads.hf_heads import model_class
from ebbtide.workloads.hf_inputs import inputs_for, request_for, loss_of
from ebbtide.workloads.shrink import shrink
from ebbtide.workloads.hf_mend import complete
LIM={"narrow":6e8,"shallow":4e8,"full":1.2e8}


def params(cls, config):
    with torch.device("meta"):
        m = cls(config)
    return sum(p.numel() for p in m.parameters())


def attempt(t, level):
    torch.manual_seed(0)
    c = CONFIG_MAPPING[t]()
    cls = model_class(c)
    cfg = (
        shrink(c, divisor=8)
        if level == "narrow"
        else shrink(c, divisor=1)
        if level == "shallow"
        else c
    )
    n = params(cls, cfg)
    if n > 1.2e9:
        return dict(ok=False, stage="size", error=f"{n / 1e9:.1f} G parameters")
    st = "build"
    try:
        m = cls._from_config(cfg)
        m.train()
        st = "inputs"
        req = request_for(
            cls, cfg, batch=2, seq=16, image=None, device=torch.device("cpu"), dtype=torch.float32
        )
        x = inputs_for(cls, req)
        st = "forward"
        o = m(**x)
        st = "loss"
        l = loss_of(o)
        st = "backward"
        l.backward()
        return dict(
            ok=True,
            loss="loss" in o and o.loss is not None if hasattr(o, "keys") else False,
            params=n,
        )
    except Exception as e:
        tb = [
            f"{os.path.basename(f.filename)}:{f.lineno} {f.line}"
            for f in traceback.extract_tb(e.__traceback__)
        ][-3:]
        return dict(ok=False, stage=st, error=repr(e)[:400], tb=tb)


for line in sys.stdin:
    t = line.strip()
    r = {}
    t0 = time.time()
    fails = []
    for lv in ("narrow", "shallow", "full"):
        try:
            r = attempt(t, lv)
        except Exception as e:
            tb = [
                f"{os.path.basename(f.filename)}:{f.lineno} {f.line}"
                for f in traceback.extract_tb(e.__traceback__)
            ][-3:]
            r = dict(ok=False, stage="config", error=repr(e)[:400], tb=tb)
        gc.collect()
        r["level"] = lv
        if r["ok"]:
            break
        fails.append(r)
    r = dict(r)
    r["fails"] = fails
    r["t"] = t
    r["s"] = round(time.time() - t0, 1)
    print("@@" + json.dumps(r), flush=True)

import subprocess, sys, json, time, threading, queue, os

types = json.load(open("/tmp/types.json")) if len(sys.argv) < 3 else sys.argv[2].split(",")
out = sys.argv[1]
J = 2
TO = 40
res = json.load(open(out)) if os.path.exists(out) and os.environ.get("KEEP") else {}
if os.environ.get("ONLYBAD"):
    types = [t for t in types if not res.get(t, {}).get("ok")]
q = queue.Queue()
[q.put(t) for t in types]


def worker():
    p = None
    while True:
        try:
            t = q.get_nowait()
        except queue.Empty:
            break
        if p is None:
            p = subprocess.Popen(
                ["nice", "-n", "5", sys.executable, "/work/main/bench/_cov_worker.py"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                bufsize=1,
                preexec_fn=lambda: __import__("resource").setrlimit(9, (16 << 30, 16 << 30)),
            )
            first = True
        p.stdin.write(t + "\n")
        p.stdin.flush()
        tm = threading.Timer(TO + (20 if first else 0), p.kill)
        tm.start()
        first = False
        r = None
        for line in p.stdout:
            if line.startswith("@@"):
                r = json.loads(line[2:])
                break
        tm.cancel()
        if r is None:
            r = dict(t=t, ok=False, stage="crash", error="crash or timeout")
            p.kill()
            p.wait()
            p = None
        res[t] = r
        if len(sys.argv) > 2 or not r["ok"]:
            print(
                t,
                r["ok"],
                r.get("level"),
                r.get("s"),
                r.get("stage"),
                r.get("error", "")[:300],
                flush=True,
            )
            for f in r.get("fails", [])[:3]:
                print(
                    "    ",
                    f["level"],
                    f["stage"],
                    f["error"][:250],
                    "|".join(f.get("tb", [])[-2:])[:300],
                )
        json.dump(res, open(out + ".tmp", "w"))
        os.replace(out + ".tmp", out)
    if p:
        p.stdin.close()
        p.wait()


ts = [threading.Thread(target=worker) for _ in range(J)]
[t.start() for t in ts]
[t.join() for t in ts]
print(sum(r["ok"] for r in res.values()), "ok of", len(res))

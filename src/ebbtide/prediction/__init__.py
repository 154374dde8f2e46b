"""From a trace to what a workload needs on a GPU: peak, ledger, timeline, batch curve."""

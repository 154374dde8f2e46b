"""`ebbtide.fit`: look at a step, plan it, try the plan, and hand it out."""

"""The first script: every worker pushes a gradient, the servers update the weights.

Alone:            python examples/first_script.py
With 3 workers:   python -m asyncps launch -n 3 -s 2 -- python examples/first_script.py
"""

import numpy as np

import asyncps

with asyncps.create("dist_sync") as store:
    store.set_optimizer("sgd", learning_rate=0.1)
    weights = np.zeros(4, "f4")
    store.init("weights", weights)
    for step in range(3):
        gradient = np.full(4, store.rank + 1, "f4")
        store.pushpull("weights", gradient, out=weights)  # the sum over all workers is applied
        print(f"worker {store.rank} of {store.num_workers}, step {step}: {weights}")

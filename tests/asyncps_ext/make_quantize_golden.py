"""Makes quantize_golden.json: what MXNet 1.9.1 sends of gradients with its 2bit.

Run by hand with an interpreter that has MXNet 1.9.1 (bench/peers/setup.sh makes one):
python tests/asyncps_ext/make_quantize_golden.py > tests/asyncps_ext/quantize_golden.json

Its store of one process compresses what two devices push, each with a residual of its own, and sums
what it decodes. Both push the same here, so half of what is pulled is what one of them sent.
(1.9.1 has no 1bit, which came later.)
"""

import json

import mxnet
import numpy as np

THRESHOLDS = (0.5, 0.1, 4.0)
SIZES = (1, 16, 37)
ROUNDS = 5


def sent_in_each_round(threshold, gradients):
    """What one device's pushes decode to."""
    store = mxnet.kv.create("device")
    store.set_gradient_compression({"type": "2bit", "threshold": threshold})
    store.init("key", mxnet.nd.zeros(gradients.shape[1]))
    out = mxnet.nd.zeros(gradients.shape[1])
    sent = []
    for gradient in gradients:
        store.push("key", [mxnet.nd.array(gradient, ctx=mxnet.cpu(i)) for i in range(2)])
        store.pull("key", out=out)
        sent.append((out.asnumpy() / 2).tolist())
    return sent


if __name__ == "__main__":
    cases = []
    for seed, threshold in enumerate(THRESHOLDS):
        for size in SIZES:
            rng = np.random.RandomState(100 * seed + size)
            gradients = (rng.standard_normal((ROUNDS, size)) * threshold).astype("f4")
            gradients[:, ::5] = np.float32(threshold)  # exactly at it
            sent = sent_in_each_round(threshold, gradients)
            cases.append(
                {"threshold": threshold, "gradients": gradients.tolist(), "sent": sent}
            )
    print(json.dumps(cases))

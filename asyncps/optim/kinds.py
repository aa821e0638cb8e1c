"""The optimizers that are there, with MXNet's names and defaults.

Of all of them: t counts the updates of a key from 1; `clip_gradient` bounds each element, negative
means no bound; `rescale_grad` multiplies the sum of a round. Where a rule says clip(x) the bound
applies to x. `lazy_update` is about row-sparse keys: True touches only the rows that have a
gradient, what the optimizer keeps and weight decay included; False touches all, those without one
as if theirs were zero.
"""

from __future__ import annotations

from typing import ClassVar

from asyncps.optim.base import Optimizer


class Test(Optimizer, builtin=True):
    """`w += rescale_grad * g`: exact sums, for tests."""

    __test__ = False  # not a test class of pytest
    name = "test"
    defaults: ClassVar = {"rescale_grad": 1.0}


class SGD(Optimizer, builtin=True):
    """Stochastic gradient descent with momentum, as MXNet's sgd and nag.

    `g' = clip(rescale_grad*g) + wd*w; m = momentum*m - learning_rate*g'; w += m`, without momentum
    `w -= learning_rate*g'`. `nesterov=True` is MXNet's nag: with `k = momentum*m`,
    `w += (momentum+1)*(k - learning_rate*g') - k`, then `m = k - learning_rate*g'` with the new w
    in g'.
    """

    name = "sgd"
    defaults: ClassVar = {
        "learning_rate": 0.01, "momentum": 0.0, "wd": 0.0, "rescale_grad": 1.0,
        "clip_gradient": -1.0, "nesterov": False, "lazy_update": True,
    }


class Adam(Optimizer, builtin=True):
    """Adam as MXNet 1.9.1's adam_update: weight decay joins the gradient.

    `g' = clip(rescale_grad*g + wd*w)`; `m = beta1*m + (1-beta1)*g'`;
    `v = beta2*v + (1-beta2)*g'*g'`; `w -= lr_t*m/(sqrt(v)+epsilon)` with
    `lr_t = learning_rate*sqrt(1-beta2^t)/(1-beta1^t)`.
    Reference: Kingma and Ba, https://arxiv.org/abs/1412.6980, end of section 2.
    """

    name = "adam"
    defaults: ClassVar = {
        "learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "wd": 0.0,
        "rescale_grad": 1.0, "clip_gradient": -1.0, "lazy_update": True,
    }


class AdamW(Optimizer, builtin=True):
    """Adam with the decay beside the step, as MXNet's operator contrib.adamw_update.

    `g' = clip(rescale_grad*g)`, m and v as Adam's;
    `w -= eta*(learning_rate*m/(sqrt(v)+epsilon) + wd*w)`. As in that operator the decay is
    multiplied by eta and not by the rate (for `learning_rate*wd`, give the rate as eta, and 1 as
    learning_rate), nothing corrects the bias unless `correct_bias=True` (the rate is Adam's lr_t),
    and with rescale_grad 0 nothing moves.
    Reference: Loshchilov and Hutter, https://arxiv.org/abs/1711.05101.
    """

    name = "adamw"
    defaults: ClassVar = {
        "learning_rate": 0.001, "eta": 1.0, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8,
        "wd": 0.0, "rescale_grad": 1.0, "clip_gradient": -1.0, "correct_bias": False,
        "lazy_update": True,
    }


class AdaGrad(Optimizer, builtin=True):
    """AdaGrad: `g' = clip(rescale_grad*g); h += g'*g'; w -= learning_rate*(g'/sqrt(h+eps) + wd*w)`.

    Reference: Duchi, Hazan and Singer, https://jmlr.org/papers/v12/duchi11a.html.
    """

    name = "adagrad"
    defaults: ClassVar = {
        "learning_rate": 0.01, "eps": 1e-7, "wd": 0.0, "rescale_grad": 1.0, "clip_gradient": -1.0,
        "lazy_update": True,
    }


class RMSProp(Optimizer, builtin=True):
    """RMSProp, plain or centered, as MXNet's rmsprop_update and rmspropalex_update.

    `g' = clip(rescale_grad*g + wd*w); n = gamma1*n + (1-gamma1)*g'*g'`;
    `w -= learning_rate*g'/sqrt(n+epsilon)`. With `centered=True`:
    `mean = gamma1*mean + (1-gamma1)*g'`;
    `delta = gamma2*delta - learning_rate*g'/sqrt(n - mean*mean + epsilon); w += delta`.
    `clip_weights` bounds the weights after the step.
    Reference for the latter: Graves, https://arxiv.org/abs/1308.0850, (38) to (45).
    """

    name = "rmsprop"
    defaults: ClassVar = {
        "learning_rate": 0.001, "gamma1": 0.9, "gamma2": 0.9, "epsilon": 1e-8, "centered": False,
        "clip_weights": -1.0, "wd": 0.0, "rescale_grad": 1.0, "clip_gradient": -1.0,
        "lazy_update": True,
    }


class FTRL(Optimizer, builtin=True):
    """Follow the regularized leader, as MXNet's ftrl_update (it spells lamda1; lambda1 is taken).

    `g' = clip(rescale_grad*g); z += g' - (sqrt(n + g'*g') - sqrt(n))*w/learning_rate; n += g'*g'`;
    `w = (sign(z)*lamda1 - z)/((beta + sqrt(n))/learning_rate + wd)` where `abs(z) > lamda1`, else
    0. With a rate of 0 nothing moves.
    Reference: McMahan and others, https://doi.org/10.1145/2487575.2488200.
    """

    name = "ftrl"
    defaults: ClassVar = {
        "learning_rate": 0.1, "lamda1": 0.01, "beta": 1.0, "wd": 0.0, "rescale_grad": 1.0,
        "clip_gradient": -1.0, "lazy_update": True,
    }


class LAMB(Optimizer, builtin=True):
    """LAMB, as MXNet's lamb_update_phase1 and lamb_update_phase2.

    `g' = clip(rescale_grad*g)`, m and v as Adam's;
    `r = (m/(1-beta1^t))/(sqrt(v/(1-beta2^t)) + epsilon) + wd*w` (without the divisions if
    `bias_correction=False`); `w -= learning_rate*norm(w)/norm(r)*r`. norm(w) is held between
    lower_bound and upper_bound; where a norm is 0 the quotient is 1. The norms are those of a whole
    key: keys of such a store are not cut into chunks, so this optimizer is set before large keys
    are made.
    Reference: You and others, https://arxiv.org/abs/1904.00962.
    """

    name = "lamb"
    whole_keys = True
    defaults: ClassVar = {
        "learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6, "wd": 0.0,
        "rescale_grad": 1.0, "clip_gradient": -1.0, "lower_bound": -1.0, "upper_bound": -1.0,
        "bias_correction": True,
    }

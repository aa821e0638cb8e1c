"""DistOpt: training without servers, every worker with an optimizer of its own; as SINGA's."""

from asyncps.distopt.face import DistOpt

__all__ = ["DistOpt"]

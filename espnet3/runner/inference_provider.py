"""Older path of `espnet3.systems.base.inference_provider`."""

from espnet3.systems.base.inference_provider import InferenceProvider

__all__ = ["InferenceProvider"]

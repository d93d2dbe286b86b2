"""Cluster Energy Saving: sleep the nodes that nobody needs, wake them ahead of need."""

from helios.services.ces.ces import Ces
from helios.services.ces.levels import level_now, levels_of, published_options
from helios.services.ces.options import CesOptions

__all__ = ["Ces", "CesOptions", "level_now", "levels_of", "published_options"]

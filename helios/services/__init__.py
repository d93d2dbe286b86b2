"""Judgement: services propose what a cluster should do, and never do it. Strangers to each other."""

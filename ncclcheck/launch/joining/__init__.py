"""Joins: nodes that were started by hand or by a scheduler find node rank 0 and prove who they are."""

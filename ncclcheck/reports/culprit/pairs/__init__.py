"""Measured pairs of nodes -> what explains them: nodes, NICs, rails, links, cuts; and which pairs come next."""

"""How nodes of a join prove who they are, and seal what they say."""

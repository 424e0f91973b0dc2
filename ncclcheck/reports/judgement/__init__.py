"""Facts -> verdicts: what a rule and a finding are, and how all rules are applied."""

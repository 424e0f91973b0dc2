"""Words of a report: folded, wrapped, made visible, compared."""

"""Machine -> facts; judges nothing, and knows nothing of reports or the command line."""

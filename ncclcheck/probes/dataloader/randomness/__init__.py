"""Random generators of workers, ranks and epochs."""

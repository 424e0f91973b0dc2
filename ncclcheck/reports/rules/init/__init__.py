"""Init methods: where the ranks of a job find each other, and what starts them."""

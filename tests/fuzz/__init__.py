"""Input from outside, changed at random: python -m tests.fuzz.run --seconds 60 --seed 1 [TARGET...]."""

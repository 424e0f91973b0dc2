"""Test data of which every bit of the result is known, and what came out instead."""

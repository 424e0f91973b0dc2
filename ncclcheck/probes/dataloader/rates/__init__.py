"""What a loader takes and gives: samples a second, memory, descriptors."""

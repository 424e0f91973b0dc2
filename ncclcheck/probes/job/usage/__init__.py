"""What a running job uses and meets: memory, traffic, cores, interruptions, transports."""

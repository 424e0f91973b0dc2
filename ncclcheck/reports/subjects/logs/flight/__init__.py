"""Flight Recorder's dumps: what each rank had called, and where they part."""

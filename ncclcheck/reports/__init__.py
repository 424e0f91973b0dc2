"""Facts -> findings -> text; pure: no file, clock, process or torch."""

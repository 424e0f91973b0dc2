"""One file a subject, beside the probe of the same name; every `@rule` below here is found by itself."""

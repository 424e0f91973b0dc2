"""Rules of settings, a module a subject: what calls for a value here, and who says so."""

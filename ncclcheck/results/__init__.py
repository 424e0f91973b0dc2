"""Clusters -> documents and files: judged, saved, merged, and written where nobody else can interfere."""

"""What every room uses: errors, exit codes, deadlines, progress, and the records on the wire."""

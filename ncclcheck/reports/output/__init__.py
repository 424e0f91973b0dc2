"""A document in other forms: text, Markdown, HTML, JUnit, Prometheus, files of settings."""

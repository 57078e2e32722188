"""Self-contained HTML pages and their charts, without libraries, scripts or downloads. Pure."""

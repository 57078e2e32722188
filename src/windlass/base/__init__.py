"""Code that every layer uses: settings, notation, running commands, HTML pages."""

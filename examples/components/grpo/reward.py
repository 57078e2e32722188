"""The reward worker: the share of the tokens of each text that are token 3."""

import sys

from web import serve

serve(int(sys.argv[1]), {"/reward": lambda texts: [text.count(3) / len(text) for text in texts]})

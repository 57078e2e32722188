"""Ask the server for a completion."""

import json
import sys
import urllib.request

url, model = sys.argv[1:]
asked = json.dumps({"model": model, "prompt": "A supercomputer is", "max_tokens": 16}).encode()
request = urllib.request.Request(f"{url}/v1/completions", asked, {"Content-Type": "application/json"})
with urllib.request.urlopen(request, timeout=300) as answer:
    print(json.load(answer)["choices"][0]["text"], flush=True)

"""The tuned Llama training step: products by hand in bf16 and fp8, compiled pieces, one pass per optimizer step."""

"""Export of trained models: merged weights, PEFT adapters and GGUF files with a model card."""

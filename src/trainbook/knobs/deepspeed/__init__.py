"""What DeepSpeed's engine is told, what it honours, and what a DeepSpeed file may say beside the knobs."""

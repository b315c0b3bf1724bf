"""What differs between the arms of an ablation, with its uncertainty, in numbers and in words."""

"""The lab: swap one component, keep everything else, and learn what it did."""

"""What does an agent's model see, and how does it stay small, valid and useful?"""

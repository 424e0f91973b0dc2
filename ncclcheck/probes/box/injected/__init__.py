"""What is put on the path of the job: the folder holds sitecustomize.py, which is copied into each box."""

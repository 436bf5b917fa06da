"""Servers in processes of their own: started, listened to, restarted, ended."""

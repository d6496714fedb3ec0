from .complexity import count_operations

__all__ = ['count_operations']

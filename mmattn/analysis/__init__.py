from .complexity import compare, compare_with_paper, count_config, count_operations, count_parameters

__all__ = ['compare', 'compare_with_paper', 'count_config', 'count_operations', 'count_parameters']

from .complexity import compare_with_paper, count_config, count_model, count_operations, count_parameters

__all__ = ['compare_with_paper', 'count_config', 'count_model', 'count_operations', 'count_parameters']

"""Solve the dual problems of kernel SVMs (:class:`clsvm.problem.Problem`) by products with the kernel matrix."""

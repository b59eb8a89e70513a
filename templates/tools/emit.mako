## Render the comment above an emitted program: the formula, how rows are stored, arguments, launch sizes and numbers.
<%
    V, workgroup = options["V"], profile.style == "workgroup"
    number = {name: int(value) for name, value in options.items() if value.isdecimal()}
    each = number.get("GROUPS", 1)
    tiles = "groups" if each == 1 else f"groups / {each}, rounded up"
    spec = kernel.spec
%>\
${kernel.name}: K(x, y) =
${wrapped(spec.formula)}
% if not spec.element:
with dot = <x,y>, xx = <x,x>, yy = <y,y>, sqdist = max(xx + yy - 2 dot, 0)
% endif

Product ${repr(product)} over ${layout.name} rows with kernel values in ${dtype}:
${wrapped(does)}

The file compiles without options. Its options, for a build that passes them itself:
${wrapped(" ".join(made))}

Rows are stored in lane groups of V = ${V}: row i is lane i % V of group g = i / V. n_pad is the number of rows,
rounded up to a multiple of V. Padding rows are zero, and their output has no meaning.
% for line in layout.rows_words:
${line}
% endfor
Right-hand rows u are stored in blocks of UB = ${options["UB"]}. capacity is their number, rounded up to a multiple of
UB. The right-hand rows beyond their number are zero:
% for line in layout.panel_words:
${line}
% endfor

One kernel, ${entry}. Its arguments, in this order:
${"\n".join(arguments)}

% if not workgroup:
Launch: one dimension, global size ${tiles}; local size 1.
% else:
<% items = layout.items(number) %>\
Launch: two dimensions, global size (${tiles}${"," if each > 1 else ""} * ${items}, blocks), local size (${items}, 1).
% if "UPDATE" in options or not layout.shared:
  blocks must be 1.
% else:
  blocks: the work-groups that share a lane group's work, 1 to capacity / ${options["UB"]}.
% endif
% endif

% if spec.arguments:
Numbers of the kernel function, for ${", ".join(f"{name} = {value!r}" for name, value in kernel.params.items())}; other numbers work with this program too:
% for argument, value in zip(spec.arguments, kernel.numbers):
  ${argument.name} = ${int(value) if argument.type == "int" else repr(value)}
% endfor
% else:
The kernel function has no numbers of its own.
% endif

"""What the HTML pages share, so that they look and behave alike: one document each that asks the network for nothing.

`document` fills templates and writes the Content-Security-Policy, `markup` makes tables and lists and escapes whatever
came from outside, `words` says numbers; page.css and the scripts beside them are in every page. Not here: what a page
says, which is with whoever found it out (`sinks.page`, `evaluate.page`).
"""

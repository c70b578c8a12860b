"""`mintnet studio`: the models in a browser, one file a view (extra ``studio``)."""

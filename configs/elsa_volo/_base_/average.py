# The average of the weights of D5. ELSA prints that there is one, but not its decay: 0.99992 is the script's default.
average = dict(type='EMAHook', momentum=8e-5, priority='ABOVE_NORMAL')

# What the agents of the platform say.

welcome = Hello! I can have a report written or a version deployed. What shall it be?
what-about = Shall it be a report, or a deployment?
goodbye = Until next time!
refused = I may not hand this over: that needs somebody of operations.
to-analyst = The analyst will look at it.
to-deployer = The deployer will take it from here.

report-no-files = Send me the files with your message, and I will write the report.
report-which = I have read the { $files } files ({ $kinds }). Which quarter is the report about?
report-done = Here is the report on the { $quarter }: sales rose by 8 %, and returns fell.
report-unsure = Then I will take the latest quarter. Is that all right?
latest = latest quarter

deploy-which = Which version shall I deploy?
deploy-approval = Version { $version } is ready. I need an approval before I go on.
deploy-prompt = Deploy version { $version } to production ({ $when })?
deploy-waiting = Nobody has decided yet; I go on as soon as somebody has.
deploy-rejected = Version { $version } stays where it is: “{ $comment }”. When shall I try again?
deploy-done = Version { $version } is in production.
now = now
no-comment = no reason given

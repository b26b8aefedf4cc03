# What users answer to the offer of another agent, by kinds (see plain_answers.py).

yes =
    yes | yep | yeah | yup | ya | yea | yas | yes please | of course | sure | sure thing | for sure
    | definitely | absolutely | certainly | indeed | correct | right | exactly | affirmative |
    totally | why not | sounds good | sounds great | that works | works for me | i do | i would |
    i'd like that | i would like that | i'd love to | i would love to | yes i do | yes i would | i
    want that | i want to | please | i accept | i agree | agreed | confirm | confirmed | by all
    means | aye | you bet | let's | lets | y | i think so | makes sense | good idea | fine by me
fine =
    ok | okay | okey | okie | k | kk | alright | all right | right | fine | great | perfect | cool |
    good | nice | awesome | excellent | very well | done | got it
switch =
    switch | switch me | switch please | change | change me | change it | go ahead | go for it | go
    | go on | do it | do that | do so | let's do it | lets do it | let's go | lets go | please do |
    make it so | connect | connect me | transfer | transfer me | pass me | hand me over | put me
    through | take me | take me there | move me | bring me | send me | proceed | i want to switch |
    i'd like to switch | i would like to switch | let's switch | lets switch | talk | i want to talk
    | switch over | switch it | over | through
please =
    please | pls | plz | if you can | if possible | if you would | kindly
thanks =
    thanks | thank you | thx | ty | cheers | many thanks | thanks a lot | thank you very much
filler =
    oh | ah | um | uh | hmm | hm | mm | well | so | then | now | right now | actually | hey | hi |
    man | mate | sir | madam | just | and | but | lol | haha | really
no =
    no | nope | nah | naw | na | no way | not now | not yet | not really | not right now | not today
    | later | maybe later | some other time | another time | no need | no need to | not necessary |
    i don't | i do not | i don't want to | i don't want that | i do not want to | don't | do not |
    don't switch | do not switch | don't change | no switch | never | never mind | nevermind |
    negative | i'd rather not | i would rather not | rather not | better not | i'm good | im good |
    i am good | i'm fine | im fine | i am fine | i'm ok | not interested | cancel | skip | pass | n
    | neither | none | absolutely not | of course not | certainly not | don't bother | leave it |
    hold on | not at the moment | not at this time | i don't think so | i think not | no i don't |
    no i'm good
stay =
    stay | stay here | stay with | i'll stay | ill stay | i will stay | i'd rather stay | let's stay
    | lets stay | keep | keep going | keep me here | continue | continue here | carry on | go on
    here | let's continue | lets continue | remain | here | as it is | stick | stick with | stay put
    | i prefer to stay | i want to stay | i want to continue
link =
    to | with | the | a | an | over to | through to | me | it | option | number | for | by | at | on
    | this
first =
    one | first | the first | the first one | number one | option one | option 1 | number 1
second =
    two | second | the second | the second one | number two | option two | option 2 | number 2

/* regenerator-runtime 0.13.11, for the parts of Dash that await:
   what they need of the polyfills that dashboard/scripts.py leaves out.

   MIT License

   Copyright (c) 2014-present, Facebook, Inc.

   Permission is hereby granted, free of charge, to any person obtaining a copy
   of this software and associated documentation files (the "Software"), to deal
   in the Software without restriction, including without limitation the rights
   to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
   copies of the Software, and to permit persons to whom the Software is
   furnished to do so, subject to the following conditions:

   The above copyright notice and this permission notice shall be included in all
   copies or substantial portions of the Software.

   THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
   IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
   FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
   AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
   LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
   OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
   SOFTWARE. */
var runtime=function(t){"use strict"
;var r,e=Object.prototype,n=e.hasOwnProperty,o=Object.defineProperty||function(t,r,e){t[r]=e.value
},i="function"==typeof Symbol?Symbol:{},a=i.iterator||"@@iterator",c=i.asyncIterator||"@@asyncIterator",u=i.toStringTag||"@@toStringTag"
;function h(t,r,e){return Object.defineProperty(t,r,{value:e,enumerable:!0,configurable:!0,writable:!0}),t[r]}
try{h({},"")}catch(t){h=function(t,r,e){return t[r]=e}}function l(t,r,e,n){
var i=r&&r.prototype instanceof d?r:d,a=Object.create(i.prototype),c=new P(n||[]);return o(a,"_invoke",{
value:O(t,e,c)}),a}function f(t,r,e){try{return{type:"normal",arg:t.call(r,e)}}catch(t){return{type:"throw",
arg:t}}}t.wrap=l;var s="suspendedStart",p="suspendedYield",y="executing",v="completed",g={};function d(){}
function m(){}function w(){}var b={};h(b,a,function(){return this})
;var L=Object.getPrototypeOf,x=L&&L(L(T([])));x&&x!==e&&n.call(x,a)&&(b=x)
;var E=w.prototype=d.prototype=Object.create(b);function j(t){["next","throw","return"].forEach(function(r){
h(t,r,function(t){return this._invoke(r,t)})})}function _(t,r){function e(o,i,a,c){var u=f(t[o],t,i)
;if("throw"!==u.type){var h=u.arg,l=h.value
;return l&&"object"==typeof l&&n.call(l,"__await")?r.resolve(l.__await).then(function(t){e("next",t,a,c)
},function(t){e("throw",t,a,c)}):r.resolve(l).then(function(t){h.value=t,a(h)},function(t){
return e("throw",t,a,c)})}c(u.arg)}var i;o(this,"_invoke",{value:function(t,n){function o(){
return new r(function(r,o){e(t,n,r,o)})}return i=i?i.then(o,o):o()}})}function O(t,r,e){var n=s
;return function(o,i){if(n===y)throw new Error("Generator is already running");if(n===v){
if("throw"===o)throw i;return F()}for(e.method=o,e.arg=i;;){var a=e.delegate;if(a){var c=k(a,e);if(c){
if(c===g)continue;return c}}if("next"===e.method)e.sent=e._sent=e.arg;else if("throw"===e.method){
if(n===s)throw n=v,e.arg;e.dispatchException(e.arg)}else"return"===e.method&&e.abrupt("return",e.arg);n=y
;var u=f(t,r,e);if("normal"===u.type){if(n=e.done?v:p,u.arg===g)continue;return{value:u.arg,done:e.done}}
"throw"===u.type&&(n=v,e.method="throw",e.arg=u.arg)}}}function k(t,e){var n=e.method,o=t.iterator[n]
;if(o===r)return e.delegate=null,"throw"===n&&t.iterator.return&&(e.method="return",e.arg=r,k(t,e),
"throw"===e.method)||"return"!==n&&(e.method="throw",
e.arg=new TypeError("The iterator does not provide a '"+n+"' method")),g;var i=f(o,t.iterator,e.arg)
;if("throw"===i.type)return e.method="throw",e.arg=i.arg,e.delegate=null,g;var a=i.arg
;return a?a.done?(e[t.resultName]=a.value,e.next=t.nextLoc,"return"!==e.method&&(e.method="next",e.arg=r),
e.delegate=null,g):a:(e.method="throw",e.arg=new TypeError("iterator result is not an object"),
e.delegate=null,g)}function G(t){var r={tryLoc:t[0]};1 in t&&(r.catchLoc=t[1]),2 in t&&(r.finallyLoc=t[2],
r.afterLoc=t[3]),this.tryEntries.push(r)}function N(t){var r=t.completion||{};r.type="normal",delete r.arg,
t.completion=r}function P(t){this.tryEntries=[{tryLoc:"root"}],t.forEach(G,this),this.reset(!0)}function T(t){
if(t){var e=t[a];if(e)return e.call(t);if("function"==typeof t.next)return t;if(!isNaN(t.length)){
var o=-1,i=function e(){for(;++o<t.length;)if(n.call(t,o))return e.value=t[o],e.done=!1,e;return e.value=r,
e.done=!0,e};return i.next=i}}return{next:F}}function F(){return{value:r,done:!0}}return m.prototype=w,
o(E,"constructor",{value:w,configurable:!0}),o(w,"constructor",{value:m,configurable:!0}),
m.displayName=h(w,u,"GeneratorFunction"),t.isGeneratorFunction=function(t){
var r="function"==typeof t&&t.constructor;return!!r&&(r===m||"GeneratorFunction"===(r.displayName||r.name))},
t.mark=function(t){return Object.setPrototypeOf?Object.setPrototypeOf(t,w):(t.__proto__=w,
h(t,u,"GeneratorFunction")),t.prototype=Object.create(E),t},t.awrap=function(t){return{__await:t}},
j(_.prototype),h(_.prototype,c,function(){return this}),t.AsyncIterator=_,t.async=function(r,e,n,o,i){
void 0===i&&(i=Promise);var a=new _(l(r,e,n,o),i);return t.isGeneratorFunction(e)?a:a.next().then(function(t){
return t.done?t.value:a.next()})},j(E),h(E,u,"Generator"),h(E,a,function(){return this}),
h(E,"toString",function(){return"[object Generator]"}),t.keys=function(t){var r=Object(t),e=[]
;for(var n in r)e.push(n);return e.reverse(),function t(){for(;e.length;){var n=e.pop()
;if(n in r)return t.value=n,t.done=!1,t}return t.done=!0,t}},t.values=T,P.prototype={constructor:P,
reset:function(t){if(this.prev=0,this.next=0,this.sent=this._sent=r,this.done=!1,this.delegate=null,
this.method="next",
this.arg=r,this.tryEntries.forEach(N),!t)for(var e in this)"t"===e.charAt(0)&&n.call(this,e)&&!isNaN(+e.slice(1))&&(this[e]=r)
},stop:function(){this.done=!0;var t=this.tryEntries[0].completion;if("throw"===t.type)throw t.arg
;return this.rval},dispatchException:function(t){if(this.done)throw t;var e=this;function o(n,o){
return c.type="throw",c.arg=t,e.next=n,o&&(e.method="next",e.arg=r),!!o}
for(var i=this.tryEntries.length-1;i>=0;--i){var a=this.tryEntries[i],c=a.completion
;if("root"===a.tryLoc)return o("end");if(a.tryLoc<=this.prev){
var u=n.call(a,"catchLoc"),h=n.call(a,"finallyLoc");if(u&&h){if(this.prev<a.catchLoc)return o(a.catchLoc,!0)
;if(this.prev<a.finallyLoc)return o(a.finallyLoc)}else if(u){if(this.prev<a.catchLoc)return o(a.catchLoc,!0)
}else{if(!h)throw new Error("try statement without catch or finally")
;if(this.prev<a.finallyLoc)return o(a.finallyLoc)}}}},abrupt:function(t,r){
for(var e=this.tryEntries.length-1;e>=0;--e){var o=this.tryEntries[e]
;if(o.tryLoc<=this.prev&&n.call(o,"finallyLoc")&&this.prev<o.finallyLoc){var i=o;break}}
i&&("break"===t||"continue"===t)&&i.tryLoc<=r&&r<=i.finallyLoc&&(i=null);var a=i?i.completion:{}
;return a.type=t,a.arg=r,i?(this.method="next",this.next=i.finallyLoc,g):this.complete(a)},
complete:function(t,r){if("throw"===t.type)throw t.arg
;return"break"===t.type||"continue"===t.type?this.next=t.arg:"return"===t.type?(this.rval=this.arg=t.arg,
this.method="return",this.next="end"):"normal"===t.type&&r&&(this.next=r),g},finish:function(t){
for(var r=this.tryEntries.length-1;r>=0;--r){var e=this.tryEntries[r]
;if(e.finallyLoc===t)return this.complete(e.completion,e.afterLoc),N(e),g}},catch:function(t){
for(var r=this.tryEntries.length-1;r>=0;--r){var e=this.tryEntries[r];if(e.tryLoc===t){var n=e.completion
;if("throw"===n.type){var o=n.arg;N(e)}return o}}throw new Error("illegal catch attempt")},
delegateYield:function(t,e,n){return this.delegate={iterator:T(t),resultName:e,nextLoc:n},
"next"===this.method&&(this.arg=r),g}},t}("object"==typeof module?module.exports:{});try{
regeneratorRuntime=runtime}catch(t){
"object"==typeof globalThis?globalThis.regeneratorRuntime=runtime:Function("r","regeneratorRuntime = r")(runtime)
}
